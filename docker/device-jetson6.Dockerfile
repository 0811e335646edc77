# A device agent on a Jetson with JetPack 6 (L4T r36, Python 3.10). Build on a Jetson, in the project's folder:
#   docker build -f docker/device-jetson6.Dockerfile -t trilby/device-jetson6:0.1.0 .
# Run it with --runtime nvidia.
ARG BASE_IMAGE=nvcr.io/nvidia/l4t-jetpack:r36.4.0

FROM ${BASE_IMAGE} AS build
# NVIDIA's builds for JetPack lag behind: the newest that is there for this one.
ARG TORCH_INDEX=https://pypi.jetson-ai-lab.io/jp6/cu126
ARG TORCH=2.8.0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv=3.10.* \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /venv
WORKDIR /srv/trilby
COPY requirements.lock requirements-torch.lock docker/traces.lock ./
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock -r traces.lock
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --index-url ${TORCH_INDEX} "torch==${TORCH}" \
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
RUN /venv/bin/python sbom.py trilby/device-jetson6 > sbom.cdx.json
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=600s \
    CMD ["/venv/bin/python", "-m", "service.alive", "device"]
ENTRYPOINT ["/venv/bin/python", "-m", "service.command"]
CMD ["device"]
