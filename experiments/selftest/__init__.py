"""The self-test: planted levers through the whole real pipeline, each with the outcome it must get.

A gate that never closes is no gate. Here every way in which a lever can be wrong, slow, absent or
harmful is planted on purpose, on a workload of milliseconds, and the same code that judges real
levers (fork server, witness, battery, blocks of pairs, decision, registry) has to find it out.
"""
