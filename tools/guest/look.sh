# Tells how a job stands, and gives parts of its output.
# Arguments: ID OUT COUNT TAIL ERR COUNT TAIL, in blocks of 4096 bytes: for each stream the
# first block, how many, and how many at the end beside these.
# Prints two more lines, then the blocks of each stream on its own stream, and at the end of
# each "smol1 end":
#   STATE CODE BEGIN END FLAG WHY EPOCH TIMEOUT OUTBYTES ERRBYTES
#   FILES
# as state.sh and run.sh have them; END is now while it runs, BYTES is - for a file that is gone,
# FILES is what the names of its files begin with.
smol_find "$1"
smol_stand
if [ $smol_state = running ]; then { read -r smol_end _ </proc/uptime; } 2>/dev/null; fi
smol_size() {
  smol_bytes=-
  if [ -s "$1" ]; then
    smol_bytes=$(stat -Lc %s "$1" 2>/dev/null) || smol_bytes=$(($(wc -c <"$1")))
  elif [ -e "$1" ] || [ $smol_native$smol_flag = 1- ] || [ $smol_native$smol_flag = 1full ]; then
    smol_bytes=0 # a native job makes the file with the first that comes
  fi
}
smol_size "$smol_f.stdout"
smol_out=$smol_bytes
smol_size "$smol_f.stderr"
smol_err=$smol_bytes
echo "$smol_state $smol_code $smol_begin $smol_end $smol_flag $smol_why $smol_info $smol_out $smol_err"
printf '%s\n' "$smol_f"
# The sizes are told: what a file has grown by meanwhile is cut off by the reader.
smol_part() {
  smol_last=end smol_n=$(($3 + $4))
  if [ "$2" != - ] && [ "$2" -gt $(($3 * 4096)) ] && [ "$4" -gt 0 ]; then
    dd if="$1" bs=4096 skip="$3" count="$4" 2>/dev/null || smol_last=cut
  fi
  if [ "$2" != - ] && [ "$5" -gt 0 ] && [ "$2" -gt $((smol_n * 4096)) ]; then
    smol_tail=$((($2 + 4095) / 4096 - $5))
    if [ $smol_tail -gt $smol_n ]; then smol_n=$smol_tail; fi
    dd if="$1" bs=4096 skip="$smol_n" count="$5" 2>/dev/null || smol_last=cut
  fi
  echo "smol1 $smol_last"
}
smol_part "$smol_f.stderr" "$smol_err" "$5" "$6" "$7" >&2
smol_part "$smol_f.stdout" "$smol_out" "$2" "$3" "$4"
