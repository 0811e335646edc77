# The middle layers on NVIDIA GPUs, with flash-attn. Build in the project's folder (flash-attn is compiled: half an hour):
#   docker build -f docker/cloud-cuda.Dockerfile -t trilby/cloud-cuda:0.1.0 .
ARG BASE_IMAGE=docker.io/nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04
ARG BUILD_IMAGE=docker.io/nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04

FROM ${BUILD_IMAGE} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cu130
ARG FLASH_ATTN=2.8.3
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3=3.12.* python3-dev=3.12.* python3-venv=3.12.* \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /venv
WORKDIR /srv/trilby
COPY requirements.lock requirements-torch.lock docker/traces.lock ./
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock -r traces.lock
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --index-url ${TORCH_INDEX} -r requirements-torch.lock
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check setuptools==80.9.0 wheel==0.45.1 ninja==1.13.0 packaging==25.0 \
    && MAX_JOBS=4 /venv/bin/pip install --no-cache-dir --no-build-isolation "flash-attn==${FLASH_ATTN}" \
    && /venv/bin/pip uninstall --yes --quiet ninja wheel pip
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
    TRILBY_LOG_FORM=json \
    TRILBY_CLOUD_HOST=0.0.0.0
# A new volume takes its owner from here.
RUN install --directory --owner=10001 --group=10001 /cache
COPY docker/sbom.py ./
RUN /venv/bin/python sbom.py trilby/cloud-cuda > sbom.cdx.json
USER 10001:10001
EXPOSE 8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=600s \
    CMD ["/venv/bin/python", "-m", "service.alive", "cloud"]
ENTRYPOINT ["/venv/bin/python", "-m", "service.command"]
CMD ["cloud"]
