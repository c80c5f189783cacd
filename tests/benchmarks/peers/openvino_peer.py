"""OpenVINO GenAI with continuous batching, in a process and an environment of its own; see peer.py.

It reads the GGUF itself, and computes in the formats that it chooses.
"""

import json
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

CACHE_GB = 2


def main() -> None:
    began = time.perf_counter()
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs = CACHE_GB, int(sys.argv[2])
    pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", {})
    print(json.dumps({"load_s": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        began = time.perf_counter()
        generated = answered(pipeline, job)
        print(json.dumps({"generated": generated, "seconds": time.perf_counter() - began}), flush=True)


def answered(pipeline: genai.ContinuousBatchingPipeline, job: dict) -> int:
    settings = genai.GenerationConfig()
    settings.max_new_tokens, settings.do_sample, settings.ignore_eos = job["tokens"], False, True
    waiting, running, number, generated = list(job["prompts"]), [], 0, 0
    while waiting or running:
        while waiting and len(running) < job["at_once"]:
            tokens = np.array([waiting.pop(0)], np.int64)
            running.append(pipeline.add_request(number, ov.Tensor(tokens), settings))
            number += 1
        pipeline.step()
        for handle in [one for one in running if one.get_status() != genai.GenerationStatus.RUNNING]:
            generated += sum(len(output.generated_ids) for output in handle.read_all())
            running.remove(handle)
    return generated


main()
