#!/bin/bash
python3 /tests/judge.py
