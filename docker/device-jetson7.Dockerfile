# A device agent on a Jetson with JetPack 7.2 (Ubuntu 24.04, CUDA 13), where the usual builds for ARM servers run:
#   docker build -f docker/device-jetson7.Dockerfile -t trilby/device-jetson7:0.1.0 .
# Run it with --runtime nvidia.
ARG BASE_IMAGE=docker.io/nvidia/cuda:13.0.2-runtime-ubuntu24.04

FROM ${BASE_IMAGE} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cu130
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3=3.12.* python3-venv=3.12.* \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /venv
WORKDIR /srv/trilby
COPY requirements.lock requirements-torch.lock docker/traces.lock ./
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock -r traces.lock
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --index-url ${TORCH_INDEX} -r requirements-torch.lock \
    && /venv/bin/pip uninstall --yes --quiet pip
COPY cloud_server/ cloud_server/
COPY device_agent/ device_agent/
COPY drafting/ drafting/
COPY peers/ peers/
COPY service/ service/
COPY split_model/ split_model/
COPY tls/ tls/
COPY wire/ wire/
RUN /venv/bin/python -m compileall -q /srv/trilby

FROM ${BASE_IMAGE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3=3.12.* \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /venv /venv
COPY --from=build /srv/trilby /srv/trilby
COPY models/demo/ /srv/trilby/models/demo/
WORKDIR /srv/trilby
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    HF_HOME=/cache \
    XDG_CACHE_HOME=/cache \
    TRILBY_LOG_FORM=json \
    TRILBY_ALIVE_PATH=/tmp/alive \
    TRILBY_DEVICE=auto
# A new volume takes its owner from here.
RUN install --directory --owner=10001 --group=10001 /cache
COPY docker/sbom.py ./
RUN /venv/bin/python sbom.py trilby/device-jetson7 > sbom.cdx.json
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=600s \
    CMD ["/venv/bin/python", "-m", "service.alive", "device"]
ENTRYPOINT ["/venv/bin/python", "-m", "service.command"]
CMD ["device"]
