# docker build -t normscope . && docker run --rm normscope
# The README's two commands: `make run` while the image is built, `make test` with --target tested.
FROM python:3.11-slim-bookworm AS built
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git=1:2.39.* make=4.3-* \
    && rm -rf /var/lib/apt/lists/*
# The default build of torch brings gigabytes of CUDA libraries; an empty value installs it.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL} \
    PIP_NO_CACHE_DIR=1
WORKDIR /normscope
COPY . .
RUN make run

FROM built AS tested
RUN make test

FROM built
# Runs are written to /work: docker run --rm -v "$PWD:/work" normscope analysis=norms
WORKDIR /work
ENTRYPOINT ["/normscope/.venv/bin/normscope"]
