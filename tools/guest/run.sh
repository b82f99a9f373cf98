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
smol_id=$1 smol_limit=$2 smol_workdir=$3 smol_stdin=$4 smol_names=$5 smol_done=$6
shift 6
if [ -n "$smol_workdir" ]; then
  cd "$smol_workdir" 2>/dev/null || { echo noworkdir; exit 0; }
fi
if [ -n "$smol_stdin" ] && [ ! -e "$smol_stdin" ]; then
  echo nostdin
  exit 0
fi
# In a subshell: becomes the command.
smol_become() {
  if [ -n "$smol_stdin" ]; then exec <"$smol_stdin"; fi
  export SMOL_MCP_COMMAND="$smol_id"
  for smol_name in $smol_names; do
    eval "export $smol_name=\"\$SMOL_E_$smol_name\"; unset SMOL_E_$smol_name"
  done
  exec "$@"
}
if [ -z "$smol_dir" ] || ! command -v head >/dev/null; then
  echo raw
  smol_become "$@"
fi
if [ -n "$smol_done" ]; then
  smol_files=
  for smol_old in $smol_done; do
    for smol_kind in out err rc pid in stop; do smol_files="$smol_files .smol-mcp-$smol_old.$smol_kind"; done
  done
  (cd "$smol_dir" && exec rm -f $smol_files) >/dev/null 2>&1 &
fi
smol_f=$smol_dir/.smol-mcp-$smol_id
smol_begin=- smol_end=-
{ read -r smol_begin _ </proc/uptime; } 2>/dev/null
echo "$$ $smol_boot" >"$smol_f.pid"
if [ -e "$smol_f.stop" ]; then
  echo stopped
  exit 0
fi
# A stop signals everything in the group; this shell stays to write the exit code down.
trap : TERM INT HUP
(smol_become "$@") >"$smol_f.out" 2>"$smol_f.err"
smol_code=$?
{ read -r smol_end _ </proc/uptime; } 2>/dev/null
{ echo "$smol_code" >"$smol_f.rc"; } 2>/dev/null
smol_lost=
if [ ! -e "$smol_f.out" ] || [ ! -e "$smol_f.err" ]; then smol_lost=lost; fi
echo "exit $smol_code $smol_begin $smol_end $smol_lost"
if [ -s "$smol_f.err" ]; then head -c "$smol_limit" "$smol_f.err" >&2; fi
if [ -s "$smol_f.out" ]; then exec head -c "$smol_limit" "$smol_f.out"; fi
