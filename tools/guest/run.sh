# Runs a command with its output in files, so that none is lost whatever it
# prints and however long it runs.
# Arguments: ID LIMIT WORKDIR STDINFILE COMMAND...
# Prints a second line, then up to LIMIT bytes of each stream on its own stream:
#   raw                   no files can be kept here: the streams follow as they come
#   noworkdir             WORKDIR is no directory to enter
#   nostdin               STDINFILE is not to be seen: the workload came up after its upload
#   exit CODE BEGIN END   BEGIN and END from /proc/uptime, or -
id=$1 limit=$2 workdir=$3 stdin=$4
shift 4
if [ -n "$workdir" ]; then
  cd "$workdir" 2>/dev/null || { echo noworkdir; exit 0; }
fi
if [ -n "$stdin" ] && [ ! -e "$stdin" ]; then
  echo nostdin
  exit 0
fi
if [ -z "$dir" ] || ! command -v head >/dev/null; then
  echo raw
  if [ -n "$stdin" ]; then exec <"$stdin"; fi
  exec "$@"
fi
f=$dir/.smol-mcp-$id
begin=- end=-
{ read -r begin _ </proc/uptime; } 2>/dev/null
true >"$f.rc"
echo $$ >"$f.pid"
# A stop signals everything in the group; this shell stays to write the exit code down.
trap : TERM INT HUP
if [ -n "$stdin" ]; then
  "$@" >"$f.out" 2>"$f.err" <"$stdin"
else
  "$@" >"$f.out" 2>"$f.err"
fi
code=$?
{ read -r end _ </proc/uptime; } 2>/dev/null
echo "$code" >"$f.rc"
echo "exit $code $begin $end"
if [ -s "$f.err" ]; then head -c "$limit" "$f.err" >&2; fi
if [ -s "$f.out" ]; then exec head -c "$limit" "$f.out"; fi
