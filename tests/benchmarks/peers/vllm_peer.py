"""vLLM for CPUs in BF16, in a process and an environment of its own; see peer.py.

Its checkpoint is made from the GGUF, beside this environment.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
CHECKPOINT = Path(sys.prefix) / "checkpoint"


def made(model: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    done = CHECKPOINT / f"{model.name}.{model.stat().st_mtime_ns}"
    if not done.exists():
        read = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.bfloat16)
        config = read.config
        del config.quantization_config  # of the file, which would not be written
        plain = type(read)(config).to(torch.bfloat16)
        plain.load_state_dict(read.state_dict())
        plain.save_pretrained(part := done.with_suffix(".part"))
        part.rename(done)
    return done


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what it prints itself
    checkpoint = made(Path(sys.argv[1]))
    began = time.perf_counter()
    from vllm import LLM, SamplingParams

    most = int(sys.argv[2])
    engine = LLM(
        str(checkpoint),
        dtype="bfloat16",
        max_num_seqs=most,
        max_model_len=int(sys.argv[3]),
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    ).llm_engine
    print(json.dumps({"load_s": time.perf_counter() - began}), file=out, flush=True)
    number = 0
    for line in sys.stdin:
        job = json.loads(line)
        settings = SamplingParams(temperature=0, max_tokens=job["tokens"], detokenize=False, ignore_eos=True)
        began = time.perf_counter()
        waiting, running, generated = list(job["prompts"]), 0, 0
        while waiting or running:
            while waiting and running < job["at_once"]:
                engine.add_request(str(number), {"prompt_token_ids": waiting.pop(0)}, settings)
                number, running = number + 1, running + 1
            for output in engine.step():
                if output.finished:
                    running -= 1
                    generated += len(output.outputs[0].token_ids)
        print(
            json.dumps({"generated": generated, "seconds": time.perf_counter() - began}), file=out, flush=True
        )


main()
