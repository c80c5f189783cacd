"""Answers as columns.

In: a JSON Schema or a short list of fields; answers of a model as text.
Out: the schema to hold answers to, and the values of the columns that follow the original ones.
Public: answer_columns.AnswerColumns, answer_columns.Answer, schema.AnswerSchema, schema.read_schema,
schema.schema_of_fields, expected_answers.ExpectedAnswers.
"""
