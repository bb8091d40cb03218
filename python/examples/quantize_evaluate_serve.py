"""From a BF16 folder to a verified NVFP4 folder, its loss, and answers over HTTP:

    python quantize_evaluate_serve.py MODEL TEXT OUT
"""

import json
import sys
import urllib.request

import nibble

model, text, out = sys.argv[1:]
print(nibble.quantize_checkpoint(model, out, "nvfp4_four_over_six", weights_only=True))
print(nibble.evaluate(out, against=model, text=text, context=128, chunks=8))
with nibble.serve(out) as server:
    body = json.dumps({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
    print(json.load(urllib.request.urlopen(request))["choices"][0]["text"])
