"""The whole recipe of Trilby's small demo model: grammars, tokenizer, training, evaluation, export."""
