#!/usr/bin/env python3
"""A Hugging Face folder with random weights, and a tokenizer trained on a text: something to fine-tune where no trained
model is at hand. Needs the packages transformers and tokenizers.

  tools/make_random_folder.py gpt2 input.txt folder/ --layers 4 --width 128 --heads 4 --context 128 --vocabulary 1000

KIND is gpt2, llama or bert; bert is a classifier, whose texts are the lines of the file."""
import argparse

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, PreTrainedTokenizerFast)


def byte_pairs(text, vocabulary):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def word_pieces(text, vocabulary):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(text.splitlines(), trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["gpt2", "llama", "bert"])
    parser.add_argument("text")
    parser.add_argument("folder")
    for name, usual in dict(layers=4, width=128, heads=4, context=128, vocabulary=1000, classes=4, seed=0).items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    o = parser.parse_args()
    torch.manual_seed(o.seed)
    text = open(o.text, encoding="utf-8").read()
    tokenizer = (word_pieces if o.kind == "bert" else byte_pairs)(text, o.vocabulary)
    shared = dict(vocab_size=o.vocabulary, hidden_size=o.width, num_hidden_layers=o.layers,
                  num_attention_heads=o.heads, max_position_embeddings=o.context)
    if o.kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=o.vocabulary, n_embd=o.width, n_layer=o.layers, n_head=o.heads,
                                           n_positions=o.context, bos_token_id=0, eos_token_id=0))
    elif o.kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shared, intermediate_size=8 * o.width // 3 // 8 * 8, bos_token_id=0,
                                             eos_token_id=0))
    else:
        model = BertForSequenceClassification(BertConfig(**shared, intermediate_size=4 * o.width, num_labels=o.classes,
                                                         problem_type="single_label_classification"))
    model.save_pretrained(o.folder)
    tokenizer.save_pretrained(o.folder)


if __name__ == "__main__":
    main()
