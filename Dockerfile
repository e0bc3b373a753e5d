# sley and what it needs, without a compiler:
#
#     docker build --tag sley .
#     docker run --rm --shm-size=1g sley run ring-allreduce --ranks 2
#
# EXTRAS adds extras, as --build-arg EXTRAS=[pictures,ucx]. The stage `development` has what a clone
# needs; .devcontainer uses it. Its steps run in a root of Debian in tests/project/test_releases.py.

FROM debian:trixie-slim AS base
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM base AS development
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git make python3-dev \
    && rm -rf /var/lib/apt/lists/*

FROM development AS build
ARG EXTRAS=
WORKDIR /source
COPY . .
RUN python3 -m venv /opt/sley \
    && /opt/sley/bin/python -m pip install --no-cache-dir ".$EXTRAS"

FROM base
COPY --from=build /opt/sley /opt/sley
ENV PATH=/opt/sley/bin:/usr/local/bin:/usr/bin:/bin
ENTRYPOINT ["sley"]
