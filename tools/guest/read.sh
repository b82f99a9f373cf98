# Reads a part of a file.
# Arguments: PATH SKIP COUNT, in blocks of 4096 bytes
# Prints a second line, then the blocks:
#   missing | denied | special
#   dir          and the entries, each KIND NAME NUL; KIND is one of d f l o; at most 1000
#   file SIZE
path=$1 skip=$2 count=$3
if [ -d "$path" ]; then
  echo dir
  n=0
  for e in "$path"/* "$path"/.[!.]* "$path"/..?*; do
    if [ -L "$e" ]; then k=l; elif [ -d "$e" ]; then k=d; elif [ -f "$e" ]; then k=f; elif [ -e "$e" ]; then k=o; else continue; fi
    printf '%s %s\0' "$k" "${e##*/}"
    n=$((n + 1))
    [ "$n" -ge 1000 ] && break
  done
  exit 0
fi
if [ ! -e "$path" ]; then echo missing; exit 0; fi
if [ ! -f "$path" ]; then echo special; exit 0; fi
if [ ! -r "$path" ]; then echo denied; exit 0; fi
size=$(stat -Lc %s "$path" 2>/dev/null) || size=$(($(wc -c <"$path")))
echo "file $size"
exec dd if="$path" bs=4096 skip="$skip" count="$count" 2>/dev/null
