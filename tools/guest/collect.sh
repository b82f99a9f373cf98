# Tells how a command of run.sh stands, and gives both ends of its output.
# Arguments: ID HEAD TAIL
# Prints a second line, then the streams: whole up to HEAD+TAIL bytes, else the
# first HEAD and the last TAIL of them:
#   gone                    no such command here
#   CODE OUTBYTES ERRBYTES  CODE is - while it runs or when its end was not seen
id=$1 head=$2 tail=$3
f=$dir/.smol-mcp-$id
if [ ! -e "$f.out" ]; then
  echo gone
  exit 0
fi
code=
{ read -r code <"$f.rc"; } 2>/dev/null
out=$(($(wc -c <"$f.out")))
err=$(($(wc -c <"$f.err")))
echo "${code:--} $out $err"
# The sizes are fixed above: a file that grows meanwhile gives no more than was told.
ends() {
  if [ "$2" -le $((head + tail)) ]; then
    head -c "$2" "$1"
  else
    head -c "$head" "$1"
    tail -c "+$(($2 - tail + 1))" "$1" | head -c "$tail"
  fi
}
ends "$f.err" "$err" >&2
ends "$f.out" "$out"
