# Puts an uploaded file where it belongs, with one rename.
# Arguments: UPLOAD PATH MODE APPEND BYTES
# MODE is octal or empty: an existing file keeps its mode and owner. APPEND is 1
# to add to the end instead.
# Prints a second line:
#   hidden       UPLOAD is not to be seen here, or not whole: the workload came up after it
#   dir
#   denied       and the reason on the error stream
#   file SIZE
upload=$1 path=$2 mode=$3 append=$4 bytes=$5
size() { stat -Lc %s "$1" 2>/dev/null || echo $(($(wc -c <"$1"))); }
if [ ! -f "$upload" ] || [ "$(size "$upload")" != "$bytes" ]; then
  echo hidden
  exit 0
fi
fail() {
  rm -f "$upload"
  echo "$1"
  exit 0
}
[ -d "$path" ] && fail dir
# A link is written through, as an editor does, not replaced.
if [ -L "$path" ]; then path=$(readlink -f "$path") || fail denied; fi
if [ "$append" = 1 ]; then
  cat "$upload" >>"$path" || fail denied
  rm -f "$upload"
  if [ -n "$mode" ]; then chmod "$mode" "$path"; fi
else
  if [ -e "$path" ]; then
    owner=$(stat -c %u:%g "$path" 2>/dev/null) && chown "$owner" "$upload" 2>/dev/null
    keep=$(stat -c %a "$path" 2>/dev/null) && chmod "$keep" "$upload" 2>/dev/null
  fi
  if [ -n "$mode" ]; then chmod "$mode" "$upload"; fi
  mv -f "$upload" "$path" || fail denied
fi
echo "file $(size "$path")"
