# The gateway: no torch, no model; of text only stored responses are kept, in memory or in redis. Build in the project's folder:
#   docker build -f docker/gateway.Dockerfile -t trilby/gateway:0.1.0 .
ARG BASE_IMAGE=docker.io/library/python:3.12.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
RUN python3 -m venv /venv
WORKDIR /srv/trilby
COPY docker/gateway.lock docker/traces.lock ./
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r gateway.lock -r traces.lock \
    && /venv/bin/pip uninstall --yes --quiet pip setuptools
COPY gateway/ gateway/
COPY service/ service/
COPY tls/ tls/
COPY wire/ wire/
RUN /venv/bin/python -m compileall -q /srv/trilby

FROM ${BASE_IMAGE}
COPY --from=build /venv /venv
COPY --from=build /srv/trilby /srv/trilby
WORKDIR /srv/trilby
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TRILBY_GATEWAY_HOST=0.0.0.0 \
    TRILBY_LOG_FORM=json
COPY docker/sbom.py ./
RUN /venv/bin/python sbom.py trilby/gateway > sbom.cdx.json
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s \
    CMD ["/venv/bin/python", "-m", "service.alive", "gateway"]
ENTRYPOINT ["/venv/bin/python", "-m", "service.begin", "gateway"]
