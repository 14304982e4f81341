"""llama.cpp's own grammar sampler as an acceptor of texts, over a real vocabulary."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp

_quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)


class Judge:
    def __init__(self, vocabulary: Path) -> None:
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(vocabulary).encode(), parameters)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.eos = llama_cpp.llama_vocab_eos(self.vocab)

    def load(self, grammar: str) -> Any:
        """The sampler of a grammar; fails the test where llama.cpp refuses it."""
        sampler = llama_cpp.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root")
        assert sampler, f"refused: {grammar[:2000]}"
        return sampler

    def tokens(self, text: str) -> list[int]:
        data = text.encode()
        out = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), out, len(out), False, False)
        return list(out[:count])

    def allows(self, sampler: Any, token: int) -> bool:
        one = (llama_cpp.llama_token_data * 1)()
        one[0].id, one[0].logit, one[0].p = token, 1.0, 0.0
        array = llama_cpp.llama_token_data_array(one, 1, -1, False)
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        return one[0].logit > -1e30

    def accepts(self, grammar: str, *texts: str) -> list[bool]:
        """Whether each text is a whole text of the grammar."""
        loaded = self.load(grammar)
        out = []
        for text in texts:
            sampler = llama_cpp.llama_sampler_clone(loaded)
            good = True
            for token in self.tokens(text):
                if not self.allows(sampler, token):
                    good = False
                    break
                llama_cpp.llama_sampler_accept(sampler, token)
            out.append(good and self.allows(sampler, self.eos))
            llama_cpp.llama_sampler_free(sampler)
        llama_cpp.llama_sampler_free(loaded)
        return out

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)
