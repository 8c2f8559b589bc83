# Prefill or decode: the processes that run the engine. Build with --build-arg SERVICE=prefill|decode.
# The package index's torch carries its own CUDA libraries; TORCH_INDEX names an index of CPU builds.
FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# Triton compiles C at run time, against Python.h, which this image brings in /usr/local/include.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} torch==2.13.0
WORKDIR /opt/pagoda
COPY constraints.txt ./
COPY proto ./proto
COPY formats ./formats
COPY runtime ./runtime
COPY kernels ./kernels
COPY engine ./engine
COPY worker ./worker
RUN pip install -c constraints.txt ./proto ./formats ./runtime ./kernels ./engine ./worker && python -m pagoda_kernels.native --all
ARG SERVICE
COPY services/${SERVICE} ./services/${SERVICE}
RUN pip install -c constraints.txt ./services/${SERVICE}
RUN useradd --create-home --uid 10001 pagoda && mkdir -p /var/lib/pagoda /var/cache/pagoda /run/pagoda \
    && chown pagoda /var/lib/pagoda /var/cache/pagoda /run/pagoda
USER pagoda
WORKDIR /var/lib/pagoda
COPY deploy/entrypoint.sh deploy/ready.py /opt/pagoda/
# Numbers of GPUs as nvidia-smi shows them; the driver's libraries for computing and for NVML.
ENV CUDA_DEVICE_ORDER=PCI_BUS_ID NVIDIA_DRIVER_CAPABILITIES=compute,utility TRITON_CACHE_DIR=/var/cache/pagoda/triton
ENV SERVICE=${SERVICE}
ENTRYPOINT ["/bin/sh", "/opt/pagoda/entrypoint.sh"]
