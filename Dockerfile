# One image for worker, drain and topology deploy.
FROM python:3.12.11-slim-bookworm
RUN useradd --create-home --uid 10001 office
WORKDIR /app
COPY pyproject.toml README.md constraints.txt ./
COPY broker_topology ./broker_topology
COPY tasks ./tasks
COPY consumers ./consumers
RUN pip install --no-cache-dir -c constraints.txt '.[postgresql,encryption]'
COPY definitions.json ./
USER office
ENV PYTHONUNBUFFERED=1
CMD ["celery", "-A", "tasks", "worker", "--loglevel", "INFO"]
