"""Validates the manifests of `nibble launch kubernetes` against the published schemas: `test_manifests.py NIBBLE`

kubernetes-validate has the schemas of Kubernetes' API, strict: unknown fields are errors. A LeaderWorkerSet does not belong
to that API: its pod templates are validated as those of Pods, its own few fields by name (API v1).
"""
import os
import subprocess
import sys

try:
    import kubernetes_validate
    import yaml
except ImportError as missing:
    print(missing)
    sys.exit(77)

NIBBLE = os.path.abspath(sys.argv[1])
VERSIONS = ("1.27", kubernetes_validate.latest_version())
FAILED = []


def manifests(*words):
    text = subprocess.run([NIBBLE, "launch", "kubernetes", "--name", "model", "--dry-run", *words], check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(text))


def validate(manifest, what):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            FAILED.append(f"{what}, Kubernetes {version}: {error.message} at {list(error.path)}")


def main():
    serve = ["--", "serve", "/models/OUT", "--host", "0.0.0.0"]
    checked = 0
    for words in (["--nodes", "4", "--gpus-per-rank", "1", "--then", "verify /models/OUT", "--", "quantize", "/models/M", "-o", "/models/OUT"],
                  ["--", "quantize", "/models/it's \"M\"", "-o", "/models/OUT"], ["--nodes", "2", *serve], ["--gpus-per-rank", "8", *serve]):
        for manifest in manifests(*words):
            validate(manifest, f"{manifest['kind']} of {words}")
            checked += 1
    group, service = manifests("--nodes", "2", "--gpus-per-rank", "1", *serve, "--tensor-parallel-size=2")
    validate(service, "the group's Service")
    assert group["apiVersion"] == "leaderworkerset.x-k8s.io/v1" and group["kind"] == "LeaderWorkerSet"
    assert set(group["spec"]) <= {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"}
    parts = group["spec"]["leaderWorkerTemplate"]
    assert set(parts) <= {"leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy", "volumeClaimTemplates"}
    assert parts["restartPolicy"] in ("Default", "RecreateGroupOnPodRestart", "None")
    for key in ("leaderTemplate", "workerTemplate"):
        pod = parts[key]
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", **pod["metadata"]}, "spec": pod["spec"]}, key)
        checked += 1
    # The check sees an error.
    deployment = manifests(*serve)[0]
    deployment["spec"]["replica"] = deployment["spec"].pop("replicas")
    before = len(FAILED)
    validate(deployment, "")
    assert len(FAILED) > before, "a misspelled field is not found"
    del FAILED[before:]
    assert not FAILED, "\n".join(FAILED)
    print(f"{checked + 1} manifests are valid for Kubernetes {' and '.join(VERSIONS)}")


if __name__ == "__main__":
    main()
