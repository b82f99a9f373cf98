# Waits until a job of several is over.
# Arguments: SECONDS ID...
# Prints a second line: over, and those that are not running any more.
smol_tenths=$(($1 * 10)) smol_pause=2
shift
while :; do
  smol_over=
  for smol_x; do
    smol_find "$smol_x"
    smol_read
    if [ "$smol_code" != - ] || [ "$smol_its_boot" != "$smol_boot" ] || { [ $smol_native = 0 ] && [ "$smol_group" != - ] && ! kill -0 "-$smol_group" 2>/dev/null; }; then
      smol_over="$smol_over $smol_x"
    fi
  done
  if [ -n "$smol_over" ] || [ $smol_tenths -le 0 ]; then break; fi
  if sleep "0.$smol_pause" 2>/dev/null; then smol_tenths=$((smol_tenths - smol_pause)); else sleep 1; smol_tenths=$((smol_tenths - 10)); fi
  if [ $smol_pause -lt 5 ]; then smol_pause=$((smol_pause + 1)); fi
done
echo "over$smol_over"
