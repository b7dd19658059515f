"""``bertflow.fix``: all cosines are 0.9, what can be done? Read, measure, try, judge, decide.

text --> documents --> fitted | put aside (reference, mined pairs)
encoder or vectors --> raw + candidates, fitted --> judged by labels, by mined pairs --> verdict --> Advice
"""
