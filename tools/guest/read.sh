# Reads a part of a file, or of a directory's list.
# Arguments: PATH SKIP COUNT FROM MOST. SKIP and COUNT are blocks of 4096 bytes, FROM
# and MOST are entries.
# Prints a second line, then the blocks:
#   missing | denied | special
#   dir          and the entries, each KIND NAME NUL; KIND is one of d f l o, or m when
#                there are more
#   file SIZE
path=$1 skip=$2 count=$3 from=$4 most=$5
if [ -d "$path" ]; then
  if [ ! -r "$path" ] || [ ! -x "$path" ]; then echo denied; exit 0; fi
  echo dir
  n=0
  for e in "$path"/* "$path"/.[!.]* "$path"/..?*; do
    if [ -L "$e" ]; then k=l; elif [ -d "$e" ]; then k=d; elif [ -f "$e" ]; then k=f; elif [ -e "$e" ]; then k=o; else continue; fi
    n=$((n + 1))
    if [ "$n" -gt $((from + most)) ]; then
      printf 'm more\0'
      break
    fi
    if [ "$n" -gt "$from" ]; then printf '%s %s\0' "$k" "${e##*/}"; fi
  done
  exit 0
fi
if [ ! -e "$path" ]; then echo missing; exit 0; fi
if [ ! -f "$path" ]; then echo special; exit 0; fi
if [ ! -r "$path" ]; then echo denied; exit 0; fi
size=$(stat -Lc %s "$path" 2>/dev/null) || size=$(($(wc -c <"$path")))
echo "file $size"
# Files of /proc say that they are empty, and give less than asked for at each read.
if [ "$size" = 0 ]; then
  tail -c "+$((skip * 4096 + 1))" "$path" | head -c "$((count * 4096))"
  exit 0
fi
exec dd if="$path" bs=4096 skip="$skip" count="$count" 2>/dev/null
