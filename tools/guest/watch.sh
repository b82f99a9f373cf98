# Stays with a job after its request is over, and ends it when its time is over.
# Arguments: DIR ID SECONDS
# It is run with state.sh and end.sh in front, and without the prologue.
smol_dir=$1 smol_seconds=$3 smol_boot=-
{ read -r smol_boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
trap : TERM INT HUP
smol_find "$2"
while [ "$smol_seconds" -gt 0 ]; do
  smol_step=5
  if [ "$smol_seconds" -lt 5 ]; then smol_step=$smol_seconds; fi
  sleep "$smol_step" || exit 1
  smol_seconds=$((smol_seconds - smol_step))
  smol_read
  if [ "$smol_code" != - ]; then exit 0; fi
  if [ "$smol_group" != - ] && ! kill -0 "-$smol_group" 2>/dev/null; then exit 0; fi
done
smol_stand
if [ $smol_state = running ]; then smol_finish TERM 20 timeout; fi
