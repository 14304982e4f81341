"""Worker process of one model: loads it (`loader`), runs its steps (`worker`), sends their output (`channel`).

`main` is its program. `worker` puts together `slot_memory` (KV cache, `prefix`), `runner` (forward passes, `threads`),
`output` (sampling), `speculator` (drafts) and `vision` (images).
"""
