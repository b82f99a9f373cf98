# Stops a command of run.sh with everything it started: TERM, up to 2 s, KILL.
# Arguments: ID
# Prints a second line:
#   gone     no such command here
#   ended    it is over
#   alive    it did not go
id=$1
f=$dir/.smol-mcp-$id
# Of a command that has not begun, this keeps it from beginning.
true >"$f.stop"
if ! { read -r shell <"$f.pid"; } 2>/dev/null; then
  echo gone
  exit 0
fi
# Every process of the command carries its id in the environment, also those that left its
# group; the shell that waits for it does not.
signal() {
  hit=
  for e in $(grep -l "SMOL_MCP_COMMAND=$id" /proc/[0-9]*/environ 2>/dev/null); do
    pid=${e#/proc/}
    pid=${pid%/environ}
    if kill "-$1" "$pid" 2>/dev/null; then hit=1; fi
  done
  if [ -z "$hit" ]; then kill "-$1" -- "-$shell" 2>/dev/null; fi
}
[ -s "$f.rc" ] || signal TERM
for _ in 1 2; do
  [ -s "$f.rc" ] && break
  sleep 1
done
if [ ! -s "$f.rc" ]; then
  signal KILL
  sleep 1
fi
if [ -s "$f.rc" ] || ! kill -0 "$shell" 2>/dev/null; then echo ended; else echo alive; fi
