# docker buildx bake --file docker/docker-bake.hcl --push
# Both variants, with a list of what is in them (SBOM) and of how they were made (provenance) beside each.

variable "VERSION" {
  default = "0.1.0"
}

variable "REPOSITORY" {
  default = "ghcr.io/truedraft/truedraft"
}

variable "REVISION" {
  default = ""
}

group "default" {
  targets = ["image"]
}

target "image" {
  name       = variant
  matrix     = { variant = ["cpu", "cuda"] }
  context    = "."
  dockerfile = "docker/Dockerfile"
  target     = variant
  tags       = ["${REPOSITORY}:${VERSION}-${variant}"]
  platforms  = ["linux/amd64"]
  attest     = ["type=sbom", "type=provenance,mode=max"]
  labels = {
    "org.opencontainers.image.version"  = VERSION
    "org.opencontainers.image.revision" = REVISION
  }
}
