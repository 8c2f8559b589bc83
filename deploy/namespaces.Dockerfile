# Holds namespaces for workers and changes with none of them. Its first process reaps what they leave, and ends only when told to.
FROM debian:bookworm-slim
USER 10001
ENTRYPOINT ["/bin/bash", "-c", "trap 'exit 0' TERM; while :; do sleep infinity & wait $!; done"]
