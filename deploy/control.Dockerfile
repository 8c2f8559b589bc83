# Gateway, router or kvstore: the processes that need no PyTorch. Build with --build-arg SERVICE=gateway|router|kvstore.
FROM python:3.11-slim-bookworm
ARG SERVICE
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /opt/pagoda
COPY constraints.txt ./
COPY proto ./proto
COPY formats ./formats
COPY runtime ./runtime
COPY services/${SERVICE} ./services/${SERVICE}
RUN pip install -c constraints.txt ./proto ./formats ./runtime ./services/${SERVICE}
RUN useradd --create-home --uid 10001 pagoda && mkdir -p /var/lib/pagoda /run/pagoda && chown pagoda /var/lib/pagoda /run/pagoda
USER pagoda
WORKDIR /var/lib/pagoda
COPY deploy/entrypoint.sh deploy/make_secrets.py deploy/ready.py /opt/pagoda/
ENV SERVICE=${SERVICE}
ENTRYPOINT ["/bin/sh", "/opt/pagoda/entrypoint.sh"]
