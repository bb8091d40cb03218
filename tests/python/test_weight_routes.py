"""The server's routes for new weights, with a plain client: urllib and safetensors bytes that this file writes."""

import json
import struct
import urllib.error
import urllib.request

import numpy as np
import pytest
from test_weights import PROMPTS, changed, chat_model  # noqa: F401  (fixtures)

import nibble


def ask(server, path, body=None, *, data=None, method="POST"):
    """The JSON of an answer; None for an empty one."""
    headers = {"Content-Type": "application/octet-stream" if data is not None else "application/json"}
    data = data if data is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data if method == "GET" else data or b"", headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def safetensors(tensors):
    header, data = {}, b""
    for name, x in tensors.items():
        raw = x.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def texts(server):
    return [ask(server, "/v1/completions", {"prompt": p, "max_tokens": 12, "temperature": 0, "logprobs": 0})["choices"][0]["logprobs"]
            for p in PROMPTS]


def test_a_trainer_sends_weights_in_pieces(chat_model, changed):  # noqa: F811
    tensors, folder = changed
    with nibble.serve(folder, port=0) as other:
        expected = texts(other)
    names = list(tensors)
    with nibble.serve(chat_model, port=0, weight_routes=True) as server:
        before = texts(server)
        ask(server, "/pause?mode=keep")
        ask(server, "/start_weight_update")
        for part in (names[:5], names[5:]):
            ask(server, "/update_weights", data=safetensors({n: tensors[n] for n in part}))
        ask(server, "/finish_weight_update", {"weight_version": "step 7", "partial": False})
        ask(server, "/resume")
        assert texts(server) == expected != before
        assert ask(server, "/weight_info", method="GET") == {"weight_version": "step 7"}
        ask(server, "/update_weights", {"update_info": {"path": str(chat_model)}})
        assert texts(server) == before
        ask(server, "/sleep?level=2")
        assert ask(server, "/is_sleeping", method="GET") == {"is_sleeping": True}
        ask(server, "/wake_up?tags=weights&tags=kv_cache")
        assert texts(server) == before


def test_without_the_flag_there_are_no_such_routes(chat_model):  # noqa: F811
    with nibble.serve(chat_model, port=0) as server:
        for path in ("/update_weights", "/sleep", "/pause"):
            with pytest.raises(urllib.error.HTTPError) as error:
                ask(server, path)
            assert error.value.code == 404 and "--weight-routes" in error.value.read().decode()


def test_values_are_rounded_as_in_process(chat_model, changed):  # noqa: F811
    tensors, _ = changed
    rough = {n: x * np.float32(1.001) for n, x in tensors.items()}
    with nibble.LLM(chat_model) as llm:
        llm.update_weights(rough)
        expected = [o.outputs[0].text for o in llm.generate(PROMPTS, nibble.SamplingParams(temperature=0, max_tokens=12))]
    with nibble.serve(chat_model, port=0, weight_routes=True) as server:
        ask(server, "/update_weights?version=r", data=safetensors(rough))
        assert [ask(server, "/v1/completions", {"prompt": p, "max_tokens": 12, "temperature": 0})["choices"][0]["text"]
                for p in PROMPTS] == expected
