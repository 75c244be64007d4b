"""Grade notebooks: the answers of a class run in processes of their own, the checks in ours.

kit           an assignment: its exercises, with all that the judge needs and no submission may see
submissions   the notebooks of a class, however they were exported, and what in them is the student's
codec         values that travel between the two processes: JSON and npy, never pickle from a submission
worker        runs one submission's cells and answers calls; it holds no check and no solution
isolation     what a worker cannot reach, the strongest that this machine offers
judge         runs the official checks on the answers of a worker
report        grades.csv, feedback for each student, answers side by side, gradebooks filled in
"""
