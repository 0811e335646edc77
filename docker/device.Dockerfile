# A device agent on an x86 or ARM CPU. Build in the project's folder:
#   docker build -f docker/device.Dockerfile -t trilby/device:0.1.0 .
ARG BASE_IMAGE=docker.io/library/python:3.12.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -m venv /venv
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
    TRILBY_ALIVE_PATH=/tmp/alive
# A new volume takes its owner from here.
RUN install --directory --owner=10001 --group=10001 /cache
COPY docker/sbom.py ./
RUN /venv/bin/python sbom.py trilby/device > sbom.cdx.json
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=600s \
    CMD ["/venv/bin/python", "-m", "service.alive", "device"]
ENTRYPOINT ["/venv/bin/python", "-m", "service.command"]
CMD ["device"]
