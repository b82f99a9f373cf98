# Stops a command of run.sh with everything it started: TERM, up to 2 s, KILL.
# Arguments: ID
# Prints a second line:
#   gone     nothing of it is here; it will not begin any more
#   ended    it is over
#   alive    something of it did not go
smol_id=$1
smol_f=$smol_dir/.smol-mcp-$smol_id
# Of a command that has not begun, this keeps it from beginning.
if [ -n "$smol_dir" ]; then true >"$smol_f.stop"; fi
if [ -s "$smol_f.rc" ]; then
  echo ended
  exit 0
fi
smol_shell=
{ read -r smol_shell _ <"$smol_f.pid"; } 2>/dev/null
# Every process of the command carries its id in the environment, also those that left its
# group; the shell that waits for it does not. What dropped its environment is in the group.
smol_marked() { grep -l "SMOL_MCP_COMMAND=$smol_id" /proc/[0-9]*/environ 2>/dev/null; }
smol_signal() {
  for smol_e in $(smol_marked); do
    smol_e=${smol_e#/proc/}
    kill "-$1" "${smol_e%/environ}" 2>/dev/null
  done
  if [ -n "$smol_shell" ]; then kill "-$1" "-$smol_shell" 2>/dev/null; fi
}
smol_left() { [ -n "$(smol_marked)" ] || { [ -n "$smol_shell" ] && kill -0 "-$smol_shell" 2>/dev/null; }; }
if ! smol_left; then
  echo gone
  exit 0
fi
smol_signal TERM
for _ in 1 2; do
  smol_left || break
  sleep 1
done
if smol_left; then
  smol_signal KILL
  sleep 1
fi
if [ -n "$(smol_marked)" ]; then echo alive; else echo ended; fi
