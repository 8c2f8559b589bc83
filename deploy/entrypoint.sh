# Runs one service with the secrets that the `secrets` container wrote for it; what the environment sets already wins.
# Settings that cannot be used (exit code 2) are no reason to start again and again: the cause stays the last line of the log.
set -eu
while IFS= read -r line; do
  name=${line%%=*}
  eval "current=\${$name:-}"
  [ -n "$current" ] || export "$name=${line#*=}"
done <"${PAGODA_SECRETS_FILE:-/run/pagoda/env}"
unset PAGODA_SECRETS_FILE

trap 'kill -TERM $! 2>/dev/null || true' TERM INT
python -m "${MODULE:-pagoda_$SERVICE}" &
code=0
wait $! || code=$?
while kill -0 $! 2>/dev/null; do code=0; wait $! || code=$?; done # a signal ends `wait` early
if [ "$code" = 2 ]; then
  trap 'kill $! 2>/dev/null || true; exit 2' TERM INT
  echo "$SERVICE cannot work with these settings, see above: mend them, then \`docker compose up -d\`; next try in ${RETRY_SECONDS:=600} s" >&2
  sleep "$RETRY_SECONDS" >/dev/null 2>&1 &
  wait $! || true
fi
exit "$code"
