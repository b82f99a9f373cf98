# Runs a command with its output in files, so that none is lost whatever it
# prints and however long it runs.
# Arguments: ID LIMIT WORKDIR STDINFILE NAMES DONE COMMAND...
# NAMES are the variables of the command's environment; each comes as SMOL_E_NAME,
# so that it cannot change how this script works. DONE are ids of commands whose
# files are not needed any more.
# Prints a second line, then up to LIMIT bytes of each stream on its own stream:
#   raw                   no files can be kept here: the streams follow as they come
#   noworkdir             WORKDIR is no directory to enter
#   nostdin               STDINFILE is not to be seen: the workload came up after its upload
#   stopped               stop.sh came first
#   exit CODE BEGIN END LOST   BEGIN and END from /proc/uptime, or -; LOST is there when
#                         the files are not any more
id=$1 limit=$2 workdir=$3 stdin=$4 names=$5 done=$6
shift 6
if [ -n "$workdir" ]; then
  cd "$workdir" 2>/dev/null || { echo noworkdir; exit 0; }
fi
if [ -n "$stdin" ] && [ ! -e "$stdin" ]; then
  echo nostdin
  exit 0
fi
# In a subshell: becomes the command.
become() {
  for name in $names; do
    eval "export $name=\"\$SMOL_E_$name\"; unset SMOL_E_$name"
  done
  export SMOL_MCP_COMMAND="$id"
  if [ -n "$stdin" ]; then exec <"$stdin"; fi
  exec "$@"
}
if [ -z "$dir" ] || ! command -v head >/dev/null; then
  echo raw
  become "$@"
fi
if [ -n "$done" ]; then
  files=
  for old in $done; do
    for kind in out err rc pid in stop; do files="$files .smol-mcp-$old.$kind"; done
  done
  (cd "$dir" && exec rm -f $files) >/dev/null 2>&1 &
fi
f=$dir/.smol-mcp-$id
begin=- end=-
{ read -r begin _ </proc/uptime; } 2>/dev/null
echo $$ >"$f.pid"
if [ -e "$f.stop" ]; then
  echo stopped
  exit 0
fi
# A stop signals everything in the group; this shell stays to write the exit code down.
trap : TERM INT HUP
(become "$@") >"$f.out" 2>"$f.err"
code=$?
{ read -r end _ </proc/uptime; } 2>/dev/null
echo "$code" >"$f.rc"
lost=
if [ ! -e "$f.out" ] || [ ! -e "$f.err" ]; then lost=lost; fi
echo "exit $code $begin $end $lost"
if [ -s "$f.err" ]; then head -c "$limit" "$f.err" >&2; fi
if [ -s "$f.out" ]; then exec head -c "$limit" "$f.out"; fi
