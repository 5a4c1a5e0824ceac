# lakelens on Debian with Java, PyTorch left out and Horovod compiled; not built or run by our tests.
#   docker build -t lakelens .
#   docker run --rm -v "$PWD:/work" lakelens etl photos tables/photos
#   docker build --build-arg EXTRA=all -t lakelens-gpu .      TensorFlow with CUDA's kernels
FROM python:3.12-slim-bookworm AS build
ARG EXTRA=all-cpu
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
COPY . /source
WORKDIR /source
RUN python -m venv /opt/lakelens && /opt/lakelens/bin/pip install --no-cache-dir wheel && \
    /opt/lakelens/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . && \
    /opt/lakelens/bin/pip install --no-cache-dir --constraint constraints/spark-4.1.txt "$(ls /wheels/lakelens-*.whl)[$EXTRA]" && \
    cd / && /opt/lakelens/bin/python -m lakelens.horovod_build

FROM python:3.12-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps && rm -rf /var/lib/apt/lists/* && \
    useradd --create-home lakelens
COPY --from=build /opt/lakelens /opt/lakelens
ENV PATH=/opt/lakelens/bin:$PATH
USER lakelens
# Delta's JARs, so that a session needs no access to Maven.
RUN cd /tmp && python -c "import lakelens; lakelens.spark_session('local[1]').stop()"
WORKDIR /work
ENTRYPOINT ["lakelens"]
CMD ["--help"]
