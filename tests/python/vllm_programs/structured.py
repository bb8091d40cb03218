import json
import re

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"brand": {"type": "string", "maxLength": 8}, "year": {"type": "integer", "minimum": 1900, "maximum": 2100}},
          "required": ["brand", "year"], "additionalProperties": False}
GRAMMAR = 'root ::= "SELECT " column " FROM " table\ncolumn ::= "col_1" | "col_2"\ntable ::= "table_1" | "table_2"\n'


def main():
    llm = LLM(model="Qwen/Qwen2.5-3B-Instruct", max_model_len=256)

    def answer(prompt, **how):
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**how), max_tokens=100, temperature=0.7, seed=1)
        return llm.generate(prompt, sampling_params=params)[0].outputs[0].text

    choice = answer("Classify this sentiment: vLLM is wonderful!", choice=["Positive", "Negative"])
    assert choice in ("Positive", "Negative")
    email = answer("Generate an email address for Alan Turing.", regex=r"[a-z]{1,8}@[a-z]{1,8}\.com")
    assert re.fullmatch(r"[a-z]{1,8}@[a-z]{1,8}\.com", email)
    car = json.loads(answer("Generate a JSON with the brand and year of a car.", json=SCHEMA))
    assert set(car) == {"brand", "year"} and 1900 <= car["year"] <= 2100
    query = answer("Generate an SQL query.", grammar=GRAMMAR)
    assert re.fullmatch("SELECT col_[12] FROM table_[12]", query)
    for name, text in (("choice", choice), ("regex", email), ("json", car), ("grammar", query)):
        print(f"Output of {name}: {text}")


if __name__ == "__main__":
    main()
