# The worker's own image: the daemon alone. Hermes is in the runner image (worker/runner), sandboxes bring their own.
# Any image with Node 20.19 or newer and npm will do as a base. The classic builder is enough (no BuildKit syntax).
ARG BASE_IMAGE=node:20-bookworm-slim

FROM ${BASE_IMAGE} AS build
# A dangling build stage is found by this label: docker image prune --filter label=hermes-fleet.stage=build
LABEL hermes-fleet.stage=build
WORKDIR /app
COPY package.json package-lock.json .npmrc tsconfig.json ./
COPY shared/package.json shared/
COPY producer/package.json producer/
COPY worker/package.json worker/
RUN npm ci --workspace shared --workspace worker --include-workspace-root
COPY shared shared
COPY worker worker
RUN npx tsc -b worker

FROM ${BASE_IMAGE}
WORKDIR /app
ENV NODE_ENV=production
COPY package.json package-lock.json .npmrc requirements.txt ./
COPY shared/package.json shared/
COPY producer/package.json producer/
COPY worker/package.json worker/
RUN npm ci --omit=dev --workspace shared --workspace worker && rm -rf ~/.npm
COPY --from=build /app/shared/dist shared/dist
COPY --from=build /app/worker/dist worker/dist
COPY shared/lua shared/lua
# node is PID 1 and listens to SIGTERM: it gives back what it runs.
CMD ["node", "worker/dist/main.js", "start"]
