# Puts an uploaded file where it belongs, with one rename, and to disk: a machine that is killed
# after the answer has it.
# Arguments: UPLOAD PATH MODE APPEND BYTES
# MODE is octal or empty: an existing file keeps its mode and owner. APPEND is 1
# to add to the end instead.
# Prints a second line:
#   hidden       UPLOAD is not to be seen here, or not whole: the workload came up after it
#   dir
#   denied       and the reason on the error stream
#   file SIZE
smol_upload=$1 smol_path=$2 smol_mode=$3 smol_append=$4 smol_bytes=$5
size() { stat -Lc %s "$1" 2>/dev/null || echo $(($(wc -c <"$1"))); }
if [ ! -f "$smol_upload" ] || [ "$(size "$smol_upload")" != "$smol_bytes" ]; then
  echo hidden
  exit 0
fi
fail() {
  rm -f "$smol_upload"
  echo "$1"
  exit 0
}
[ -d "$smol_path" ] && fail dir
# A link is written through, as an editor does, not replaced.
if [ -L "$smol_path" ]; then smol_path=$(readlink -f "$smol_path") || fail denied; fi
if [ "$smol_append" = 1 ]; then
  cat "$smol_upload" >>"$smol_path" || fail denied
  rm -f "$smol_upload"
  if [ -n "$smol_mode" ]; then chmod "$smol_mode" "$smol_path"; fi
  sync "$smol_path" 2>/dev/null
else
  if [ -e "$smol_path" ]; then
    smol_owner=$(stat -c %u:%g "$smol_path" 2>/dev/null) && chown "$smol_owner" "$smol_upload" 2>/dev/null
    smol_keep=$(stat -c %a "$smol_path" 2>/dev/null) && chmod "$smol_keep" "$smol_upload" 2>/dev/null
  fi
  if [ -n "$smol_mode" ]; then chmod "$smol_mode" "$smol_upload"; fi
  mv -f "$smol_upload" "$smol_path" || fail denied
  sync "${smol_path%/*}/" 2>/dev/null
fi
echo "file $(size "$smol_path")"
