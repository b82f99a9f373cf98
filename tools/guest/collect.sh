# Tells how a command of run.sh stands, and gives both ends of its output.
# Arguments: ID HEAD TAIL
# Prints a second line, then the streams: whole up to HEAD+TAIL bytes, else the
# first HEAD and the last TAIL of them:
#   gone                    no such command here
#   CODE OUTBYTES ERRBYTES  CODE is - while it runs, and dead when its shell is gone
#                           and has written none down
smol_id=$1 smol_head=$2 smol_tail=$3
smol_f=$smol_dir/.smol-mcp-$smol_id
if [ ! -e "$smol_f.out" ]; then
  echo gone
  exit 0
fi
smol_shell= smol_its_boot= smol_code=
{ read -r smol_shell smol_its_boot <"$smol_f.pid"; } 2>/dev/null
if [ "$smol_its_boot" != "$smol_boot" ] || ! kill -0 "$smol_shell" 2>/dev/null; then smol_code=dead; fi
# Read last: the shell may have ended in between.
if [ -s "$smol_f.rc" ]; then read -r smol_code <"$smol_f.rc"; fi
smol_out=$(($(wc -c <"$smol_f.out")))
smol_err=$(($(wc -c <"$smol_f.err")))
echo "${smol_code:--} $smol_out $smol_err"
# The sizes are fixed above: a file that grows meanwhile gives no more than was told.
smol_ends() {
  if [ "$2" -le $((smol_head + smol_tail)) ]; then
    head -c "$2" "$1"
  else
    head -c "$smol_head" "$1"
    tail -c "+$(($2 - smol_tail + 1))" "$1" | head -c "$smol_tail"
  fi
}
smol_ends "$smol_f.err" "$smol_err" >&2
smol_ends "$smol_f.out" "$smol_out"
