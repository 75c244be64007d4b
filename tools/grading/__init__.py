"""Grade notebooks: the answers of a class run in processes of their own, the checks in ours.

kit           an assignment: its exercises, with all that the judge needs and no submission may see
inbox         the files of a class, however they were exported
reading       what a notebook holds: cells in words, code and pictures, or why it is none
submissions   one student's notebook, and what in it is the student's
syntax        what Python code says, without running it
codec         values that travel between the two processes: JSON and npy, never pickle from a submission
worker        runs one submission's cells and answers calls; it holds no check and no solution
isolation     what a worker cannot reach, the strongest that this machine offers
process       the worker's process as the judge has it: started, asked, stopped and begun anew
checking      whether an answer is right: the official check, and the solution on further inputs
judge         an outcome for each exercise, whatever a submission does
marks         marks.csv: what a person gave, each with the answer that it was given for
report        grades.csv, feedback for each student, answers side by side
gradebook     an export of Canvas or Moodle filled in, and who stands there and where not
tables        CSV as spreadsheets read and write it
"""
