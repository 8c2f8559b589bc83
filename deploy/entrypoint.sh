# Starts one service with the secrets that the `secrets` container wrote; what the environment sets already wins.
set -eu
while IFS='=' read -r name value; do
  eval "current=\${$name:-}"
  [ -n "$current" ] || export "$name=$value"
done </run/pagoda/env
exec python -m "pagoda_$SERVICE"
