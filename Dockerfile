# One image for web, workers, beat and agents; docker-compose.yml says which command each container runs.
FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /srv/switchyard

# Requirements first: this layer stays while only the code changes.
COPY requirements.txt .
RUN pip install --require-hashes -r requirements.txt

COPY manage.py pyproject.toml ./
COPY agents agents
COPY controlplane controlplane
COPY deploy deploy
COPY frontend frontend
COPY scheduler scheduler
COPY switchyard switchyard

ENV YARD_HOME=/var/lib/switchyard YARD_STATIC=/srv/static
RUN useradd --system --uid 10001 --home-dir /var/lib/switchyard --create-home yard \
    && install -d -o yard -g yard /var/lib/switchyard/shared /var/lib/switchyard/blobs \
       /var/lib/switchyard/decisions /var/lib/switchyard/agent /run/yard \
    && YARD_SECRET_KEY=only-to-collect-static-files-while-building python manage.py collectstatic --no-input --verbosity 0

USER yard
EXPOSE 8470
CMD ["uvicorn", "controlplane.asgi:application", "--host", "0.0.0.0", "--port", "8470", "--ws", "websockets-sansio", "--lifespan", "off", "--ws-per-message-deflate", "false"]
