# One image for web, workers, beat and agents; docker-compose.yml says which command each container runs.
# Behind a mirror: --build-arg PYTHON_IMAGE=... and PIP_INDEX_URL=...
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE}

ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /srv/switchyard

# Code from git repositories is fetched by the workers: --build-arg WITH_GIT=1 installs git, from Debian's servers.
ARG WITH_GIT=
RUN if [ -n "$WITH_GIT" ]; then \
        apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*; \
    fi

# Requirements first: this layer stays while only the code changes. Hashes are checked wherever packages come from.
COPY requirements.txt .
ARG PIP_INDEX_URL
RUN pip install --require-hashes -r requirements.txt

COPY manage.py pyproject.toml ./
COPY agents agents
COPY controlplane controlplane
COPY router router
COPY deploy deploy
COPY frontend frontend
COPY scheduler scheduler
COPY switchyard switchyard

# Volumes that are new take owner and mode from these folders. Stages run as nobody and get folders of their own in what
# nodes share; the folder itself is root's, or a stage could put something else in another's place.
# What is imported is named, and the working folder is not: manage.py and the commands of docker-compose.yml say -P.
ENV YARD_HOME=/var/lib/switchyard YARD_STATIC=/srv/static PYTHONPATH=/srv/switchyard
RUN useradd --system --uid 10001 --home-dir /var/lib/switchyard --no-create-home yard \
    && install -d -o yard -g yard -m 0700 /var/lib/switchyard/blobs /var/lib/switchyard/decisions /run/yard /run/router /run/join \
    && install -d -m 0711 /var/lib/switchyard-agent /srv/shared \
    && YARD_SECRET_KEY=only-to-collect-static-files-while-building python manage.py collectstatic --no-input --verbosity 0 \
    && python -m compileall -q .

USER yard
EXPOSE 8470
CMD ["uvicorn", "controlplane.asgi:application", "--host", "0.0.0.0", "--port", "8470", "--http", "controlplane.request_head:BoundedHead", "--ws", "websockets-sansio", "--lifespan", "off", "--ws-per-message-deflate", "false"]
