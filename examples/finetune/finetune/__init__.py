"""A fine-tune in five stages: preprocess, pretrain, train, validate, infer. Each is ``python -m finetune.<stage>``."""
