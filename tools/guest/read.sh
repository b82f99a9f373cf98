# Reads a part of a file, or of a directory's list.
# Arguments: PATH SKIP COUNT FROM MOST. SKIP and COUNT are blocks of 4096 bytes, FROM
# and MOST are entries.
# Prints a second line, then the blocks:
#   missing | denied | special
#   dir          and the entries, each KIND NAME NUL; KIND is one of d f l o, or m when
#                there are more
#   file SIZE
smol_path=$1 smol_skip=$2 smol_count=$3 smol_from=$4 smol_most=$5
if [ -d "$smol_path" ]; then
  if [ ! -r "$smol_path" ] || [ ! -x "$smol_path" ]; then echo denied; exit 0; fi
  echo dir
  smol_n=0
  for smol_e in "$smol_path"/* "$smol_path"/.[!.]* "$smol_path"/..?*; do
    if [ -L "$smol_e" ]; then smol_k=l; elif [ -d "$smol_e" ]; then smol_k=d; elif [ -f "$smol_e" ]; then smol_k=f; elif [ -e "$smol_e" ]; then smol_k=o; else continue; fi
    smol_n=$((smol_n + 1))
    if [ "$smol_n" -gt $((smol_from + smol_most)) ]; then
      printf 'm more\0'
      break
    fi
    if [ "$smol_n" -gt "$smol_from" ]; then printf '%s %s\0' "$smol_k" "${smol_e##*/}"; fi
  done
  exit 0
fi
if [ ! -e "$smol_path" ]; then echo missing; exit 0; fi
if [ ! -f "$smol_path" ]; then echo special; exit 0; fi
if [ ! -r "$smol_path" ]; then echo denied; exit 0; fi
smol_size=$(stat -Lc %s "$smol_path" 2>/dev/null) || smol_size=$(($(wc -c <"$smol_path")))
echo "file $smol_size"
# Files of /proc say that they are empty, and give less than asked for at each read.
if [ "$smol_size" = 0 ]; then
  tail -c "+$((smol_skip * 4096 + 1))" "$smol_path" | head -c "$((smol_count * 4096))"
  exit 0
fi
exec dd if="$smol_path" bs=4096 skip="$smol_skip" count="$smol_count" 2>/dev/null
