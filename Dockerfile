# bertflow in a container, with the package versions that the tests run with (constraints.txt).
#
#   docker build -t bertflow .                                        # PyTorch from PyPI, with CUDA
#   docker build -t bertflow --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#   docker run --rm -v "$PWD:/data" bertflow bertflow train --data.sentences text.txt --output runs/mine
#   docker run --rm --gpus all -v "$PWD:/data" bertflow torchrun --nproc-per-node 4 -m bertflow train ...
#
# EXTRAS are those of pyproject.toml: demo carries an encoder, so that the image works without a hub.
FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=https://pypi.org/simple
ARG EXTRAS=demo

# Threads that wait for each other by spinning are slow as soon as cores are shared.
ENV OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1

WORKDIR /opt/bertflow
# The heavy layer first: it changes with the constraints alone.
COPY constraints.txt ./
RUN python -m pip install -c constraints.txt --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple torch
COPY pyproject.toml README.md LICENSE ./
COPY bertflow ./bertflow
RUN python -m pip install -c constraints.txt ".[$EXTRAS]"
COPY train.py evaluate.py ./
COPY configs ./configs
RUN python -m bertflow --version

# Models of the hub and runs go where the user's files are.
WORKDIR /data
ENV HF_HOME=/data/.huggingface
CMD ["bertflow", "--help"]
