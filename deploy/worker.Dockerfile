# Prefill or decode: the processes that run the engine. Build with --build-arg SERVICE=prefill|decode.
# The package index's torch carries its own CUDA libraries; TORCH_INDEX names an index of CPU builds.
FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# Triton builds a small launcher for each kernel with the C compiler at run time.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/pagoda
COPY constraints.txt ./
RUN pip install ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} torch==2.13.0
COPY proto ./proto
COPY runtime ./runtime
COPY kernels ./kernels
COPY engine ./engine
COPY worker ./worker
RUN pip install -c constraints.txt ./proto ./runtime ./kernels ./engine ./worker
ARG SERVICE
COPY services/${SERVICE} ./services/${SERVICE}
RUN pip install -c constraints.txt ./services/${SERVICE}
RUN useradd --create-home --uid 10001 pagoda && mkdir -p /var/lib/pagoda /run/pagoda && chown pagoda /var/lib/pagoda /run/pagoda
USER pagoda
WORKDIR /var/lib/pagoda
COPY deploy/entrypoint.sh deploy/ready.py /opt/pagoda/
ENV SERVICE=${SERVICE}
ENTRYPOINT ["/bin/sh", "/opt/pagoda/entrypoint.sh"]
